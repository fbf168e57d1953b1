# Two stages: the toolchain builds, the image holds the binary alone.
FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install --yes --no-install-recommends cmake && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY . .
ARG TOLLGATE_REVISION=unknown
ENV TOLLGATE_REVISION=$TOLLGATE_REVISION
RUN cargo build --release --locked && strip target/release/tollgate

FROM gcr.io/distroless/cc-debian12:nonroot
LABEL org.opencontainers.image.title="tollgate" \
      org.opencontainers.image.description="A reverse proxy that limits request rates" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /src/target/release/tollgate /tollgate
USER 65532:65532
EXPOSE 8080 9902
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=2s CMD ["/tollgate", "healthcheck"]
ENTRYPOINT ["/tollgate"]
CMD ["run", "--config", "/etc/tollgate/tollgate.toml"]
