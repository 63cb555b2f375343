# Shares of `perf report --sort dso,symbol` by part: the first pattern that a line matches names it.
BEGIN {
    n = split("kernel: ring|kernel: sleeping, waking, clocks|kernel: TCP and sockets|kernel, other|allocator|copies|" \
        "seals and tokens|machine|ring, reactor, executor|codec|other", name, "|")
    match_of[1] = "\\[k\\].*io_"
    match_of[2] = "\\[k\\].*(switch|_raw_spin|sched|wake|queue_task|enqueue|dequeue|pick_|timer|tsc|ktime|eventfd|poll)"
    match_of[3] = "\\[k\\].*(tcp|ip_|skb|sock|net|inet|dev_|loopback|xmit|softirq|napi|copy|csum|backlog)"
    match_of[4] = "\\[k\\]"
    match_of[5] = "malloc|_int_|free|calloc|tcache|alloc::"
    match_of[6] = "mem(cpy|move|set|chr|cmp)"
    match_of[7] = "aes|gcm|ghash|sha(1|2|256)|hmac|hkdf|p256|fernet|seal"
    match_of[8] = "shards::(machine|ledger|simple|place|message)|hashbrown|btree"
    match_of[9] = "shards::|glommio|io_uring|crossbeam|syscall|vdso"
    match_of[10] = "murre::|httparse|base64|serde|tungstenite|core::(str|fmt|num)"
    match_of[11] = "."
}
/^ *[0-9.]+%/ {
    for (i = 1; i <= n; i++) if ($0 ~ match_of[i]) { sum[i] += $1; break }
}
END { for (i = 1; i <= n; i++) printf "%6.2f %%  %s\n", sum[i], name[i] }
