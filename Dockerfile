# The command `commitline` with the model providers; docker-compose.yml runs it as worker and as
# migration. An application of your own: `FROM commitline:local`, install it, name it as the
# worker's argument.
ARG PYTHON_VERSION=3.11

FROM python:${PYTHON_VERSION}-slim AS build
RUN python -m venv /venv
WORKDIR /source
COPY . .
RUN /venv/bin/pip install --no-cache-dir '.[models,otel,uvloop]'

FROM python:${PYTHON_VERSION}-slim
RUN useradd --create-home --uid 10001 commitline
COPY --from=build /venv /venv
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1
USER commitline
WORKDIR /home/commitline
ENTRYPOINT ["commitline"]
CMD ["--help"]
