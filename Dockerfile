# bm25v serve in a container. Build: docker build -t bm25v .   Run: see docs/how-to/serve.md
FROM python:3.11-slim AS build

WORKDIR /source
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src

# Wheels of the pinned versions; the extra needs no torch. PIP_CONSTRAINT also holds for the builder.
ENV PIP_CONSTRAINT=/source/constraints.txt PIP_NO_CACHE_DIR=1 BM25V_MODELS=/opt/bm25v/models
RUN python -m venv /opt/bm25v \
    && /opt/bm25v/bin/python -m pip install '.[serve,heic]' \
    && /opt/bm25v/bin/bm25v models get tinyvit-5m


FROM python:3.11-slim

RUN groupadd --system --gid 10001 bm25v \
    && useradd --system --uid 10001 --gid 10001 --home-dir /data --shell /usr/sbin/nologin bm25v \
    && install --directory --owner 10001 --group 10001 --mode 0700 /data
COPY --from=build /opt/bm25v /opt/bm25v

ENV PATH=/opt/bm25v/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    BM25V_MODELS=/opt/bm25v/models \
    BM25V_GALLERY=/data/gallery.bm25v \
    XDG_CACHE_HOME=/data/cache \
    NUMBA_CACHE_DIR=/data/cache/numba

USER 10001:10001
VOLUME /data
EXPOSE 8025
HEALTHCHECK --interval=30s --timeout=5s --start-period=60s CMD \
    ["python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8025/healthz', timeout=4)"]

ENTRYPOINT ["bm25v", "serve", "--host", "0.0.0.0", "--port", "8025"]
CMD ["--watch", "/images", "--token-file", "/run/secrets/token"]
