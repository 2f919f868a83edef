#!/bin/sh
# Brings Temporal's two databases to the version of this image. Safe to repeat: setup-schema
# leaves a database alone that has a version, update-schema applies only what is missing.
# The databases themselves, and SQL_PASSWORD's owner, come from ../postgres/init.sh.
set -eu

schema=/etc/temporal/schema/postgresql/v12

for pair in temporal:temporal temporal_visibility:visibility; do
  database=${pair%%:*}
  folder=${pair##*:}
  temporal-sql-tool --plugin postgres12 --ep "$SQL_HOST" -p 5432 -u "$SQL_USER" \
    --db "$database" setup-schema -v 0.0
  temporal-sql-tool --plugin postgres12 --ep "$SQL_HOST" -p 5432 -u "$SQL_USER" \
    --db "$database" update-schema -d "$schema/$folder/versioned"
done
