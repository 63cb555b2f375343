# murre in one image: `docker build -t murre .`
#
#   docker run -p 8080:8080 murre
#
# serves user agents and app servers on port 8080, without TLS. Endpoint URLs begin with http://localhost:8080;
# --env MURRE_ENDPOINT__URL=URL replaces that, for another port or a proxy. The default command sets these two listeners.
# A command of your own begins from the defaults of murre, as everywhere. Set `admin.listen` by a variable only: the health
# check reads the variables, and not the command. With a name, murre orders its certificate and
# serves TLS (docs/SELF-HOSTING.md):
#
#   docker run -p 443:443 -p 80:80 --volume murre:/var/lib/murre murre serve --domain NAME --acme-agree
#
# podman also needs --sysctl net.ipv4.ip_unprivileged_port_start=0 for that, because the user is not root.
#
# Below /var/lib/murre are keys, users and messages; without --volume, in a volume without a name. The root can be
# read-only, all capabilities can be dropped, and any user can take the place of murre who may write that directory:
#
#   docker run -p 8080:8080 --read-only --cap-drop all --tmpfs /var/lib/murre murre
#
# The default container profile forbids io_uring: murre then polls its sockets. With io_uring, for many connections:
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

# The tag is exact, and a tag can be moved: a release pins the digest without a change to this file, by
#   docker buildx build --build-context rust:1.95.0-slim-bookworm=docker-image://rust@sha256:DIGEST .
# where `docker buildx imagetools inspect rust:1.95.0-slim-bookworm` prints the digest. It is the only base.
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
COPY tuning/image-root tuning/
RUN tuning/image-root target/dist/murre /image

FROM scratch
ARG GIT_COMMIT
LABEL org.opencontainers.image.title="murre" \
      org.opencontainers.image.description="A push server: WebPush by Mozilla's push protocol" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.revision="$GIT_COMMIT" \
      org.opencontainers.image.licenses="MPL-2.0"
COPY --from=build /image/ /
COPY LICENSE /usr/share/doc/murre/LICENSE
ENV PATH=/usr/local/bin
# The data directory is murre-data here, by its default: no setting of the image hides one of the operator.
WORKDIR /var/lib/murre
# By number: Kubernetes cannot know that a name is not that of root.
USER 10001:10001
VOLUME /var/lib/murre
# Both without TLS, and both ports of a domain. The admin and node ports stay on loopback unless told otherwise.
EXPOSE 8080 443 80
STOPSIGNAL SIGTERM
# The time of the probe is 10 s.
HEALTHCHECK --interval=30s --timeout=15s --start-period=60s CMD ["/usr/local/bin/murre", "probe", "--quick", "--quiet"]
ENTRYPOINT ["/usr/local/bin/murre"]
CMD ["serve", "--websocket", "0.0.0.0:8080", "--endpoint", "0.0.0.0:8080"]
