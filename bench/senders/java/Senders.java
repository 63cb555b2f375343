import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.security.Security;
import java.util.Base64;

import com.google.gson.JsonObject;
import com.google.gson.JsonParser;
import org.apache.http.HttpResponse;
import org.bouncycastle.jce.provider.BouncyCastleProvider;

/** Sends with webpush-java or interaso webpush: one JSON object on stdin for each message, one with its answer on
 * stdout. */
class Senders {
    public static void main(String[] arguments) throws Exception {
        Security.addProvider(new BouncyCastleProvider());
        var lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line; (line = lines.readLine()) != null;) {
            var message = JsonParser.parseString(line).getAsJsonObject();
            var answer = new JsonObject();
            try {
                var status = arguments[0].equals("interaso") ? interaso(message) : martijndwars(message);
                answer.addProperty("status", status);
            } catch (Exception error) {
                answer.addProperty("error", error.toString());
            }
            System.out.println(answer);
        }
        // The HTTP clients of both libraries leave threads.
        System.exit(0);
    }

    static String text(JsonObject message, String name) {
        return message.get(name).getAsString();
    }

    /** nl.martijndwars:web-push. */
    static int martijndwars(JsonObject message) throws Exception {
        var service = new nl.martijndwars.webpush.PushService(
            text(message, "public_key"), text(message, "private_key"), text(message, "subject"));
        var notification = nl.martijndwars.webpush.Notification.builder()
            .endpoint(text(message, "endpoint"))
            .userPublicKey(text(message, "p256dh"))
            .userAuth(text(message, "auth"))
            .payload(text(message, "text").getBytes(StandardCharsets.UTF_8))
            .ttl(message.get("ttl").getAsInt())
            .build();
        var encoding = nl.martijndwars.webpush.Encoding.valueOf(text(message, "encoding").toUpperCase());
        HttpResponse answer = service.send(notification, encoding);
        return answer.getStatusLine().getStatusCode();
    }

    /** com.interaso:webpush, which keeps the status of a success to itself. */
    static int interaso(JsonObject message) {
        var keys = com.interaso.webpush.VapidKeys.fromUncompressedBytes(
            text(message, "public_key"), text(message, "private_key"));
        var service = new com.interaso.webpush.WebPushService(text(message, "subject"), keys);
        var payload = text(message, "text").getBytes(StandardCharsets.UTF_8);
        var decoder = Base64.getUrlDecoder();
        var state = service.send(payload, text(message, "endpoint"), decoder.decode(text(message, "p256dh")),
            decoder.decode(text(message, "auth")), message.get("ttl").getAsInt(), null, null);
        return state == com.interaso.webpush.WebPush.SubscriptionState.ACTIVE ? 201 : 410;
    }
}
