# The image of the operator, which also brings the agent into the database Pods: one static binary and nothing else.
# On a machine without a container engine, hack/image makes the same image.
ARG RUST=1.95-bookworm
FROM docker.io/library/rust:${RUST} AS build
WORKDIR /src
COPY Cargo.toml Cargo.lock ./
COPY hack/binary hack/binary
COPY src src
# Cargo wants every target of the manifest to exist.
COPY tests tests
ARG PROFILE=release
# What `hello-operator --version` and the labels say:
# docker build --build-arg VERSION=0.1.0 --build-arg HELLO_COMMIT=$(git rev-parse --short HEAD)
ARG HELLO_COMMIT=unknown
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/src/target \
    cp "$(hack/binary "$PROFILE")" /hello-operator

FROM scratch
ARG VERSION=unknown
ARG HELLO_COMMIT=unknown
LABEL org.opencontainers.image.title="hello-operator" \
      org.opencontainers.image.description="A Kubernetes operator that turns a HelloOperator object into a highly available PostgreSQL" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${HELLO_COMMIT}"
COPY --from=build /hello-operator /hello-operator
# Numeric, because the image has no passwd; a Pod with runAsNonRoot needs it.
USER 65532:65532
ENTRYPOINT ["/hello-operator"]
CMD ["run"]
