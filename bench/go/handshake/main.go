// Shakes hands by crypto/tls, and says in one JSON object for each connection which group the keys were exchanged by.
//
//	handshake -ca FILE [-groups LIST] [-split N] [-times N] HOST:PORT    as a client, with a request behind the handshake
//	handshake -cert FILE -key FILE [-groups LIST]                        as a server, until its standard input ends
package main

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"strings"
	"time"
)

var groups = map[string]tls.CurveID{
	"X25519MLKEM768": tls.X25519MLKEM768, "X25519": tls.X25519, "P256": tls.CurveP256, "P384": tls.CurveP384,
}

// Sends the first bytes that are written in two segments.
type torn struct {
	net.Conn
	at int
}

func (t *torn) Write(bytes []byte) (int, error) {
	at := t.at
	t.at = 0
	if at == 0 || at >= len(bytes) {
		return t.Conn.Write(bytes)
	}
	if sent, err := t.Conn.Write(bytes[:at]); err != nil {
		return sent, err
	}
	time.Sleep(50 * time.Millisecond)
	sent, err := t.Conn.Write(bytes[at:])
	return at + sent, err
}

func say(state tls.ConnectionState, status int) {
	said, _ := json.Marshal(map[string]any{
		"group": state.CurveID.String(), "retried": state.HelloRetryRequest, "resumed": state.DidResume, "status": status,
	})
	fmt.Println(string(said))
}

func client(config *tls.Config, address string, split int) error {
	socket, err := net.DialTimeout("tcp", address, time.Minute)
	if err != nil {
		return err
	}
	defer socket.Close()
	connection := tls.Client(&torn{socket, split}, config)
	request, err := http.NewRequest("GET", "https://"+address+"/status", nil)
	if err != nil {
		return err
	}
	if err := request.Write(connection); err != nil {
		return err
	}
	answer, err := http.ReadResponse(bufio.NewReader(connection), request)
	if err != nil {
		return err
	}
	io.Copy(io.Discard, answer.Body)
	say(connection.ConnectionState(), answer.StatusCode)
	return connection.Close()
}

func server(config *tls.Config) error {
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		return err
	}
	fmt.Println(listener.Addr())
	go func() {
		for {
			socket, err := listener.Accept()
			if err != nil {
				return
			}
			connection := socket.(*tls.Conn)
			if err := connection.Handshake(); err != nil {
				log.Print(err)
			} else {
				say(connection.ConnectionState(), 0)
			}
			connection.Close()
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

func main() {
	ca, cert, key := flag.String("ca", "", ""), flag.String("cert", "", ""), flag.String("key", "", "")
	only := flag.String("groups", "", "")
	split, times := flag.Int("split", 0, ""), flag.Int("times", 1, "")
	flag.Parse()
	config := &tls.Config{ClientSessionCache: tls.NewLRUClientSessionCache(0)}
	if *only != "" {
		for _, name := range strings.Split(*only, ",") {
			config.CurvePreferences = append(config.CurvePreferences, groups[name])
		}
	}
	if *cert != "" {
		pair, err := tls.LoadX509KeyPair(*cert, *key)
		if err != nil {
			log.Fatal(err)
		}
		config.Certificates = []tls.Certificate{pair}
		if err := server(config); err != nil {
			log.Fatal(err)
		}
		return
	}
	trusted, err := os.ReadFile(*ca)
	if err != nil {
		log.Fatal(err)
	}
	config.RootCAs = x509.NewCertPool()
	config.RootCAs.AppendCertsFromPEM(trusted)
	host, _, err := net.SplitHostPort(flag.Arg(0))
	if err != nil {
		log.Fatal(err)
	}
	config.ServerName = host
	for range *times {
		if err := client(config, flag.Arg(0), *split); err != nil {
			log.Fatal(err)
		}
	}
}
