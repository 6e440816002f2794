# Images of loongforge. CI runs their script, xtask/image.sh, on the tests' build in an empty folder; the images themselves have
# not been built yet.
#
#   docker build -t loongforge .                 GPUs: the CUDA build of libtorch beside the program
#   docker build -t loongforge --target cpu .    without CUDA
#
# Runs are started in /runs: mount a volume there.

FROM rust:1.95-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ nasm python3 python3-pip && rm -rf /var/lib/apt/lists/*
# The program finds libtorch by the path that it was linked at: it stays the same in the images below.
WORKDIR /opt/loongforge
COPY . .
RUN sh xtask/image.sh && rm -rf target

FROM debian:bookworm-slim AS cpu
COPY --from=build /opt/loongforge/.libtorch /opt/loongforge/.libtorch
COPY --from=build /opt/loongforge/loongforge /usr/local/bin/loongforge
COPY --from=build /opt/loongforge/configs /opt/loongforge/configs
WORKDIR /runs
CMD ["loongforge", "--help"]

FROM python:3.12-slim-bookworm AS cuda
# Python only brings the libraries; it never runs.
RUN pip install --no-cache-dir torch==2.11.0
COPY --from=build /opt/loongforge/loongforge /usr/local/bin/loongforge
COPY --from=build /opt/loongforge/configs /opt/loongforge/configs
ENV LOONGFORGE_TORCH_LIB=/usr/local/lib/python3.12/site-packages/torch/lib
ENV LD_LIBRARY_PATH=$LOONGFORGE_TORCH_LIB
WORKDIR /runs
CMD ["loongforge", "--help"]
