// Sends with webpush-go: one JSON object on stdin for each message, one with its answer on stdout.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"strings"

	webpush "github.com/SherClockHolmes/webpush-go"
)

type message struct {
	Endpoint   string `json:"endpoint"`
	P256dh     string `json:"p256dh"`
	Auth       string `json:"auth"`
	PublicKey  string `json:"public_key"`
	PrivateKey string `json:"private_key"`
	Subject    string `json:"subject"`
	Text       string `json:"text"`
	TTL        int    `json:"ttl"`
}

func send(line []byte) map[string]any {
	var m message
	if err := json.Unmarshal(line, &m); err != nil {
		return map[string]any{"error": err.Error()}
	}
	keys := webpush.Keys{Auth: m.Auth, P256dh: m.P256dh}
	subscription := webpush.Subscription{Endpoint: m.Endpoint, Keys: keys}
	answer, err := webpush.SendNotification([]byte(m.Text), &subscription, &webpush.Options{
		// The library puts `mailto:` in front.
		Subscriber:      strings.TrimPrefix(m.Subject, "mailto:"),
		TTL:             m.TTL,
		VAPIDPublicKey:  m.PublicKey,
		VAPIDPrivateKey: m.PrivateKey,
	})
	if err != nil {
		return map[string]any{"error": err.Error()}
	}
	answer.Body.Close()
	return map[string]any{"status": answer.StatusCode}
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		answer, _ := json.Marshal(send(lines.Bytes()))
		fmt.Println(string(answer))
	}
}
