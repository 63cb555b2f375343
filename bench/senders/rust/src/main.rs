//! Sends with the crate web-push: one JSON object on stdin for each message, one with its answer on stdout.

use std::{error::Error, io};

use serde_json::{Value, json};
use web_push::{
    ContentEncoding, HyperWebPushClient, SubscriptionInfo, VapidSignatureBuilder, WebPushClient, WebPushMessageBuilder,
};

fn main() -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let client = HyperWebPushClient::new();
    for line in io::stdin().lines() {
        let answer = match runtime.block_on(send(&client, &serde_json::from_str(&line?)?)) {
            // The library keeps the status of a success to itself.
            Ok(()) => json!({"status": 201}),
            Err(error) => json!({"error": error.to_string()}),
        };
        println!("{answer}");
    }
    Ok(())
}

async fn send(client: &HyperWebPushClient, message: &Value) -> Result<(), Box<dyn Error>> {
    let text = |name: &str| message[name].as_str().unwrap_or_default();
    let subscription = SubscriptionInfo::new(text("endpoint"), text("p256dh"), text("auth"));
    let mut vapid = VapidSignatureBuilder::from_base64(text("private_key"), &subscription)?;
    vapid.add_claim("sub", text("subject"));
    let encoding = match text("encoding") {
        "aesgcm" => ContentEncoding::AesGcm,
        _ => ContentEncoding::Aes128Gcm,
    };
    let mut builder = WebPushMessageBuilder::new(&subscription);
    builder.set_payload(encoding, text("text").as_bytes());
    builder.set_vapid_signature(vapid.build()?);
    builder.set_ttl(message["ttl"].as_u64().and_then(|ttl| ttl.try_into().ok()).unwrap_or_default());
    Ok(client.send(builder.build()?).await?)
}
