"""TCP connections as their kernel and their path see them: tables, sequence numbers, forged segments, packet rules."""

import ipaddress
import socket
import struct

# linux/tcp.h
TCP_REPAIR, TCP_REPAIR_QUEUE, TCP_QUEUE_SEQ = 19, 20, 21
# Leaves repair mode without a window probe, which would be a segment to the peer.
REPAIR_ON, REPAIR_OFF_SILENT = 1, -1
RECEIVE_QUEUE, SEND_QUEUE = 1, 2
ESTABLISHED = "01"
FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
NUMBERS = 1 << 32
# linux/netfilter/nf_tables.h
NETLINK_NETFILTER, NFNL_SUBSYS_NFTABLES, NFT_MSG_NEWTABLE, NFT_MSG_GETTABLE = 12, 10, 0, 1
NFTA_TABLE_NAME, NFTA_TABLE_FLAGS, NFT_TABLE_F_OWNER = 1, 2, 2
NLMSG_ERROR, NLMSG_DONE, NLM_F_REQUEST, NLM_F_DUMP = 2, 3, 1, 0x300
FAMILIES = {1: "inet", 2: "ip", 3: "arp", 5: "netdev", 7: "bridge", 10: "ip6"}


def plain(address):
    """Address without the form of an IPv4 address in IPv6."""
    address = ipaddress.ip_address(address)
    return str(getattr(address, "ipv4_mapped", None) or address)


def key(stream):
    """Address and port of a client's socket, and the port of its server."""
    address, port = stream.getsockname()[:2]
    return plain(address), port, stream.getpeername()[1]


def established(process):
    """Keys of the established connections in the network namespace of a server process."""
    found = set()
    for name in ("tcp", "tcp6"):
        with open(f"/proc/{process}/net/{name}") as table:
            for line in table.readlines()[1:]:
                local, peer, state = line.split()[1:4]
                if state == ESTABLISHED:
                    address, port = peer.split(":")
                    # Words of four bytes in the order of this machine.
                    words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                    found.add((plain(b"".join(words)), int(port, 16), int(local.split(":")[1], 16)))
    return found


def numbers(stream):
    """Sequence numbers that a socket sends and expects next. Sends nothing."""
    stream.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, REPAIR_ON)
    try:
        found = []
        for queue in (SEND_QUEUE, RECEIVE_QUEUE):
            stream.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR_QUEUE, queue)
            found.append(stream.getsockopt(socket.IPPROTO_TCP, TCP_QUEUE_SEQ) % NUMBERS)
        return found
    finally:
        stream.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, REPAIR_OFF_SILENT)


def forge(stream, flags, sequence, acknowledged=0, payload=b""):
    """Sends a segment from a socket's address and port to its peer, past the socket."""
    (source, source_port), (target, target_port) = stream.getsockname()[:2], stream.getpeername()[:2]
    head = struct.pack(
        ">HHIIBBHHH", source_port, target_port, sequence % NUMBERS, acknowledged % NUMBERS, 5 << 4, flags, 512, 0, 0
    )
    packed = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed
    pseudo = packed + struct.pack(">II", len(head) + len(payload), socket.IPPROTO_TCP)
    segment = head[:16] + struct.pack(">H", checksum(pseudo + head + payload)) + head[18:] + payload
    with socket.socket(stream.family, socket.SOCK_RAW, socket.IPPROTO_TCP) as raw:
        raw.bind((source, 0))
        # IPv6 takes a port for a protocol here, and refuses another one than the socket's.
        raw.sendto(segment, (target, 0))


def checksum(data):
    """Internet checksum (RFC 1071)."""
    data += b"\0" * (len(data) % 2)
    total = sum(struct.unpack(f">{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def tables():
    """The nftables tables of this network namespace: family and name, and whether a process owns the table."""
    request = struct.pack("=BBH", socket.AF_UNSPEC, 0, 0)
    kind = NFNL_SUBSYS_NFTABLES << 8
    head = struct.pack("=IHHII", 16 + len(request), kind | NFT_MSG_GETTABLE, NLM_F_REQUEST | NLM_F_DUMP, 1, 0)
    found = {}
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER) as netlink:
        netlink.settimeout(10)
        netlink.bind((0, 0))
        netlink.send(head + request)
        while True:
            for message, body in messages(netlink.recv(65536)):
                if message == NLMSG_DONE:
                    return found
                assert message == kind | NFT_MSG_NEWTABLE, (message, body)
                attributes = dict(parts(body[4:]))
                name = FAMILIES[body[0]], attributes[NFTA_TABLE_NAME].rstrip(b"\0").decode()
                flags = int.from_bytes(attributes.get(NFTA_TABLE_FLAGS, b""), "big")
                found[name] = bool(flags & NFT_TABLE_F_OWNER)


def messages(data):
    """Kind and body of each netlink message."""
    while data:
        size, kind = struct.unpack_from("=IH", data)
        yield kind, data[16:size]
        data = data[(size + 3) & ~3 :]


def parts(data):
    """Number and value of each netlink attribute."""
    while data:
        size, kind = struct.unpack_from("=HH", data)
        yield kind & 0x3FFF, data[4:size]
        data = data[(size + 3) & ~3 :]
