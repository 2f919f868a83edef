#!/bin/sh
# Creates the namespace unless it is there. Safe to repeat: an existing one is left as it is.
# A server that is only just up may refuse at first; the job's restart policy tries again.
set -eu

if temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1; then
  echo "namespace $TEMPORAL_NAMESPACE exists"
else
  temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "$RETENTION"
fi

# The server's own caches learn of a namespace with a delay; a worker must not come before that.
attempt=0
until temporal workflow list --namespace "$TEMPORAL_NAMESPACE" --limit 1 >/dev/null 2>&1; do
  attempt=$((attempt + 1))
  [ "$attempt" -lt 60 ] || { echo "namespace $TEMPORAL_NAMESPACE is not served" >&2; exit 1; }
  sleep 1
done
