"""Network namespaces with links between them."""

import contextlib
import ctypes
import os
import shutil
import subprocess

CLONE_NEWNET = 0x40000000
# Why there can be none.
MISSING = None if os.geteuid() == 0 and shutil.which("ip") else "needs root and iproute2"


def run(*words):
    subprocess.run(["ip", *words], check=True, capture_output=True)


def enter(namespace):
    if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the network namespace")


@contextlib.contextmanager
def inside(name):
    """Puts this thread, and the sockets and processes that it makes, into a namespace."""
    with open("/proc/thread-self/ns/net") as here, open(f"/run/netns/{name}") as there:
        enter(there)
        try:
            yield
        finally:
            enter(here)


@contextlib.contextmanager
def linked(*addresses):
    """Two namespaces, each with the addresses of one list, and a link between them. Gives their names."""
    names = [f"murre-{os.getpid()}-{side}" for side in range(2)]
    with contextlib.ExitStack() as stack:
        for name in names:
            run("netns", "add", name)
            stack.callback(run, "netns", "del", name)
        run("link", "add", "link0", "netns", names[0], "type", "veth", "peer", "name", "link0", "netns", names[1])
        for name, own in zip(names, addresses):
            for device in ("lo", "link0"):
                run("-n", name, "link", "set", device, "up")
            for address in own:
                # No probe for other owners of the address, which takes a second.
                nodad = ["nodad"] if ":" in address else []
                run("-n", name, "address", "add", address, "dev", "link0", *nodad)
        yield names


@contextlib.contextmanager
def star(*links):
    """A namespace of clients with a link to each of several namespaces. A link is two lists of addresses: those of the
    clients' end, and those of the other end. Gives the name of the clients' namespace, and a list of the others."""
    hub, *points = names = [f"murre-{os.getpid()}-{end}" for end in ["hub", *range(len(links))]]
    with contextlib.ExitStack() as stack:
        for name in names:
            run("netns", "add", name)
            stack.callback(run, "netns", "del", name)
            run("-n", name, "link", "set", "lo", "up")
        for number, (point, ends) in enumerate(zip(points, links)):
            devices = f"link{number}", "link0"
            run("link", "add", devices[0], "netns", hub, "type", "veth", "peer", "name", devices[1], "netns", point)
            for name, device, addresses in zip((hub, point), devices, ends):
                run("-n", name, "link", "set", device, "up")
                for address in addresses:
                    nodad = ["nodad"] if ":" in address else []
                    run("-n", name, "address", "add", address, "dev", device, *nodad)
        yield hub, points
