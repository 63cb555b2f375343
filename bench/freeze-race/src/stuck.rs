//! The kernel's view of one end of a connection that does not move, for the report of a race.

use std::fmt;
use std::fs;
use std::io;
use std::net::TcpStream;

use hibernate::sys::{get, set, unsent};

const TCP: i32 = libc::IPPROTO_TCP;

/// State of one end in the kernel. Positions are those of the sequence space of the sender.
#[derive(Clone, Copy, Debug)]
pub struct End {
    send_next: u32,
    /// Bytes unsent or not acknowledged by the other end.
    unacknowledged: i32,
    receive_next: u32,
    /// Memory of segments that wait to be read or lie beyond a hole.
    received: u32,
    send_window: u32,
    receive_window: u32,
    /// First words of TCP_INFO, in its order.
    info: [u32; 26],
}

/// Reads an end out, in repair mode for that moment. Nothing is sent.
pub fn end(stream: &TcpStream) -> io::Result<End> {
    const SO_MEMINFO: i32 = 55;
    let info = get(stream, TCP, libc::TCP_INFO)?;
    let [received] = get(stream, libc::SOL_SOCKET, SO_MEMINFO)?;
    let unacknowledged = unsent(stream)?;
    set(stream, TCP, libc::TCP_REPAIR, &[1])?;
    set(stream, TCP, libc::TCP_REPAIR_QUEUE, &[2])?;
    let [send_next] = get(stream, TCP, libc::TCP_QUEUE_SEQ)?;
    set(stream, TCP, libc::TCP_REPAIR_QUEUE, &[1])?;
    let [receive_next] = get(stream, TCP, libc::TCP_QUEUE_SEQ)?;
    let [_, send_window, _, receive_window, _] = get(stream, TCP, libc::TCP_REPAIR_WINDOW)?;
    set(stream, TCP, libc::TCP_REPAIR, &[u32::MAX])?;
    Ok(End { send_next, unacknowledged, receive_next, received, send_window, receive_window, info })
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [_, ca, retransmits, probes] = self.info[0].to_ne_bytes();
        let [backoff, ..] = self.info[1].to_ne_bytes();
        let first = self.send_next.wrapping_sub(self.unacknowledged as u32);
        write!(f, "unacknowledged {first}..{} ({}), ", self.send_next, self.unacknowledged)?;
        write!(f, "receive next {}, memory {}, ", self.receive_next, self.received)?;
        write!(f, "windows {} and {}, ", self.send_window, self.receive_window)?;
        write!(f, "state {ca}, retransmits {retransmits}, probes {probes}, backoff {backoff}, ")?;
        write!(f, "rto {} ms, rtt {} us, ", self.info[2] / 1_000, self.info[17])?;
        write!(
            f,
            "mss {} and {}, segments out {}, sacked {}, ",
            self.info[4], self.info[5], self.info[6], self.info[7]
        )?;
        write!(f, "lost {}, retransmitted {} of {}, ", self.info[8], self.info[9], self.info[25])?;
        let [data_sent, _, data_received, ack_received] = [11, 12, 13, 14].map(|word| self.info[word]);
        write!(f, "last sent {data_sent} ms, data {data_received} ms, ack {ack_received} ms ago")
    }
}

/// Counters of TCP in the network namespace of the calling thread that are not 0.
pub fn counters() -> io::Result<String> {
    let text = fs::read_to_string("/proc/thread-self/net/netstat")?;
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let pairs = names.split(' ').zip(values.split(' ')).skip(1).filter(|(_, value)| *value != "0");
    Ok(pairs.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", "))
}

/// Returns how many segments the packet queues of this namespace have dropped since they were opened.
pub fn queue_dropped() -> io::Result<u64> {
    let text = fs::read_to_string("/proc/thread-self/net/netfilter/nfnetlink_queue")?;
    let dropped =
        |line: &str| line.split_whitespace().skip(5).take(2).filter_map(|count| count.parse::<u64>().ok()).sum::<u64>();
    Ok(text.lines().map(dropped).sum())
}
