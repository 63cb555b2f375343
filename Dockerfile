# murre in one image: `docker build -t murre .`
#
# The default container profile forbids io_uring: murre then polls its sockets. With io_uring, run it with:
#
#   docker run \
#       --security-opt seccomp=tuning/seccomp.json \
#       --ulimit memlock=-1 \
#       --ulimit nofile=1100000:1100000 \
#       --stop-timeout 180 \
#       --network host \
#       --volume murre:/var/lib/murre \
#       murre
#
# seccomp: the default container profile and io_uring_setup, io_uring_enter, io_uring_register (tuning/README.md).
# memlock: from Linux 6.14 on, the kernel counts rings as locked memory: 200 KiB for each shard and more.
# nofile: caps the table of one ring; 1.05 times the connections of one shard, so that each needs one ring only.
# stop-timeout: SIGTERM drains, 150 s for a million (sessions / drain.rate and 50 s); what the time does not suffice for waits in the ledger logs for the next start.
# network host: a connection through the bridge costs a conntrack entry and a trip through the proxy.
# `docker exec CONTAINER murre doctor` says what is still missing.
#
# With a domain (docs/SELF-HOSTING.md), `--publish 443:443 --publish 80:80` and
# `--sysctl net.ipv4.ip_unprivileged_port_start=0`, because the user is not root, take the place of `--network host`;
# behind `murre` the command is: serve --data-dir /var/lib/murre --domain NAME --acme-agree

FROM rust:1.95.0-slim-bookworm AS build
WORKDIR /build
COPY Cargo.toml Cargo.lock build.rs ./
COPY src src/
COPY shards shards/
COPY bench bench/
# The commit of `murre --version`: --build-arg GIT_COMMIT=$(git rev-parse HEAD)
ARG GIT_COMMIT
# No path of the machine that builds is left in the binary.
ENV RUSTFLAGS="--remap-path-prefix=/usr/local/cargo=/cargo --remap-path-prefix=/build=/murre"
RUN cargo build --profile dist --locked -p murre && strip --strip-debug target/dist/murre

FROM debian:12.11-slim
RUN useradd --system --uid 10001 --home-dir /var/lib/murre --create-home --shell /usr/sbin/nologin murre
COPY --from=build /build/target/dist/murre /usr/local/bin/murre
# For a broadcast source that is asked over https.
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY LICENSE /usr/share/doc/murre/LICENSE
USER murre
VOLUME /var/lib/murre
# WebSocket, endpoint, and both ports of a domain. The admin and node ports stay on loopback unless told otherwise.
EXPOSE 8080 8082 443 80
STOPSIGNAL SIGTERM
ENTRYPOINT ["/usr/local/bin/murre"]
CMD ["serve", "--data-dir", "/var/lib/murre", "--websocket", "0.0.0.0:8080", "--endpoint", "0.0.0.0:8082"]
