#!/bin/sh
# Runs once, when the volume is new: a role and databases for Temporal, and for the ledger.
# Neither may enter the other's. Passwords come from the environment, never over a command line.
set -eu

psql --no-psqlrc --set ON_ERROR_STOP=1 --username "${POSTGRES_USER:-postgres}" --dbname postgres <<'SQL'
\getenv temporal_password TEMPORAL_DB_PASSWORD
\getenv ledger_password LEDGER_DB_PASSWORD

create role temporal login password :'temporal_password';
create database temporal owner temporal;
create database temporal_visibility owner temporal;
revoke all on database temporal, temporal_visibility from public;

create role commitline login password :'ledger_password';
create database commitline owner commitline;
revoke all on database commitline from public;
SQL
