module murre/bench/go/handshake

go 1.26
