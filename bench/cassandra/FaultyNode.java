import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.net.InetAddress;
import java.net.ServerSocket;
import java.net.Socket;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicLong;
import java.util.stream.Collectors;
import org.apache.cassandra.concurrent.Stage;
import org.apache.cassandra.db.ColumnFamilyStore;
import org.apache.cassandra.db.Keyspace;
import org.apache.cassandra.db.Mutation;
import org.apache.cassandra.db.compaction.CompactionManager;
import org.apache.cassandra.gms.FailureDetector;
import org.apache.cassandra.gms.Gossiper;
import org.apache.cassandra.io.sstable.format.SSTableReader;
import org.apache.cassandra.locator.InetAddressAndPort;
import org.apache.cassandra.net.Message;
import org.apache.cassandra.net.MessagingService;
import org.apache.cassandra.net.Verb;
import org.apache.cassandra.service.CassandraDaemon;
import org.apache.cassandra.service.StorageService;
import org.apache.cassandra.utils.FBUtilities;

/**
 * A node of Cassandra that loses messages to its peers on request. It takes one command for each connection to port
 * 7070 of its address, and replies "ok" or the cause of a failure.
 */
public final class FaultyNode {
    private static final int CONTROL_PORT = 7070;

    /** Peers that this node neither sends messages to nor accepts messages from. */
    private static final Set<InetAddressAndPort> cut = ConcurrentHashMap.newKeySet();

    /** True if each write that this node coordinates misses one of its peers. */
    private static volatile boolean losesWrites;

    private static final AtomicLong lost = new AtomicLong();

    public static void main(String[] arguments) throws Exception {
        CassandraDaemon.main(arguments);
        MessagingService messaging = MessagingService.instance();
        messaging.outboundSink.add((message, to) -> !cut.contains(to) && !isLost(message, to));
        messaging.inboundSink.add(message -> !cut.contains(message.from()));
        InetAddress address = FBUtilities.getJustLocalAddress();
        Thread control = new Thread(() -> serve(address), "control");
        control.setDaemon(true);
        control.start();
    }

    private static boolean isLost(Message<?> message, InetAddressAndPort to) {
        if (!losesWrites || message.verb() != Verb.MUTATION_REQ) return false;
        if (((Mutation) message.payload).getKeyspaceName().startsWith("system")) return false;
        List<InetAddressAndPort> peers = Gossiper.instance.getLiveMembers().stream()
            .filter(member -> !member.equals(FBUtilities.getBroadcastAddressAndPort()))
            .sorted().collect(Collectors.toList());
        // A quorum is this node and one peer.
        if (peers.size() < 2) return false;
        // All copies of one write have the same id.
        long spread = message.id() * 0x9E3779B97F4A7C15L >>> 33;
        boolean loses = peers.get((int) (spread % peers.size())).equals(to);
        if (loses) lost.incrementAndGet();
        return loses;
    }

    private static void serve(InetAddress address) {
        try (ServerSocket server = new ServerSocket(CONTROL_PORT, 8, address)) {
            while (true) {
                try (Socket caller = server.accept()) {
                    PrintStream reply = new PrintStream(caller.getOutputStream());
                    String line = new BufferedReader(new InputStreamReader(caller.getInputStream())).readLine();
                    try {
                        reply.println(run(line.trim().split(" ")));
                    } catch (Throwable cause) {
                        reply.println(cause);
                    }
                    reply.flush();
                } catch (java.io.IOException cause) {
                    System.out.println("control: " + cause);
                }
            }
        } catch (java.io.IOException cause) {
            System.out.println("control: " + cause);
        }
    }

    private static String run(String[] words) throws Exception {
        StorageService service = StorageService.instance;
        InetAddressAndPort peer = words.length > 1 && words[0].matches("cut|join") ? InetAddressAndPort.getByName(words[1]) : null;
        switch (words[0]) {
            case "lose-writes":
                losesWrites = true;
                break;
            case "keep-writes":
                losesWrites = false;
                break;
            case "pid":
                return "ok " + ProcessHandle.current().pid();
            case "lost":
                return "ok " + lost;
            case "cut":
                cut.add(peer);
                // The failure detector of this node would need some 10 s.
                FailureDetector.instance.forceConviction(peer);
                await(() -> !FailureDetector.instance.isAlive(peer));
                break;
            case "join":
                cut.remove(peer);
                // An echo that was sent to it before would have to time out first.
                FailureDetector.instance.report(peer);
                Stage.GOSSIP.execute(() -> Gossiper.instance.realMarkAlive(
                    peer, Gossiper.instance.getEndpointStateForEndpoint(peer)));
                await(() -> FailureDetector.instance.isAlive(peer));
                break;
            case "close":
                service.stopNativeTransport(true);
                break;
            case "open":
                service.startNativeTransport();
                break;
            case "flush":
                service.forceKeyspaceFlush(words[1]);
                break;
            case "compact":
                service.forceKeyspaceCompaction(false, words[1]);
                break;
            case "compact-alone":
                // Each file without the others, as a database does when much of a file has expired.
                for (ColumnFamilyStore table : Keyspace.open(words[1]).getColumnFamilyStores())
                    for (SSTableReader file : table.getLiveSSTables())
                        CompactionManager.instance.forceUserDefinedCompaction(file.getFilename());
                break;
            default:
                return "unknown command " + words[0];
        }
        return "ok";
    }

    private static void await(java.util.function.BooleanSupplier done) throws Exception {
        for (int attempt = 0; !done.getAsBoolean(); attempt++) {
            if (attempt > 600) throw new IllegalStateException("not within 60 s");
            Thread.sleep(100);
        }
    }
}
