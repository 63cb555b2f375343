import java.net.URI;
import java.rmi.registry.LocateRegistry;
import java.util.Hashtable;
import javax.naming.Context;
import javax.naming.InitialContext;
import javax.naming.NamingException;
import javax.naming.spi.InitialContextFactory;

/** Names rmi://HOST:PORT/NAME for nodetool, on a Java without the module jdk.naming.rmi. */
public final class Registry extends InitialContext implements InitialContextFactory {
    public Registry() throws NamingException {
        super(true);
    }

    @Override
    public Context getInitialContext(Hashtable<?, ?> environment) {
        return this;
    }

    @Override
    public Object lookup(String name) throws NamingException {
        URI at = URI.create(name);
        try {
            return LocateRegistry.getRegistry(at.getHost(), at.getPort()).lookup(at.getPath().substring(1));
        } catch (Exception cause) {
            throw new NamingException(cause.toString());
        }
    }
}
