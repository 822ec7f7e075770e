#!/bin/sh
# Prints the man page of PROGRAM, made of its help texts: man_page.sh PROGRAM VERSION
set -eu
program=$1 version=$2

commands=$("$program" --help | awk '/^[^ ]/ { on = /^Subcommands:/ } on && /^  / { print $1 }')
{
  "$program" --help
  for command in $commands; do
    echo "Command: $command"
    "$program" "$command" --help
  done
} | awk -v version="$version" '
function roff(text) {
  gsub(/\\/, "\\e", text)
  gsub(/-/, "\\-", text)
  return text ~ /^[.\047]/ ? "\\&" text : text
}
function item(names, text) {
  sub(/ +$/, "", names)
  sub(/:INT in/, " in", names)
  print ".TP\n.B " roff(names) "\n" roff(text)
}
# Names in 30 columns, then their text; that of longer names is on a line of its own.
long_names != "" {
  item(long_names, substr($0, 31))
  long_names = ""
  next
}
NR == 1 {
  split($0, parts, ": ")
  print ".TH REDCO\\-LUA 1 \"\" \"redco\\-lua " version "\" \"User Commands\""
  print ".SH NAME\nredco\\-lua \\- " tolower(substr(parts[1], 1, 1)) roff(substr(parts[1], 2))
  print ".SH SYNOPSIS\n" roff(parts[2]) "\n.SH DESCRIPTION"
  next
}
sub(/^Command: /, "") { print ".SH COMMAND " toupper($0); next }
sub(/^Exit codes: /, "") { print ".SH EXIT STATUS\n" roff($0); next }
/^Usage: redco-lua \[/ { next }
sub(/^Usage: /, "") { print ".PP\n.B " roff($0); next }
/^Options:/ && !n_options++ { print ".SH OPTIONS"; next }
/^[A-Z][a-z]+:$/ { if (/^Subcommands/) print ".SH COMMANDS"; next }
/^  [^ ]/ && (length($0) <= 31 || substr($0, 30, 1) != " ") { long_names = substr($0, 3); next }
/^  [^ ]/ { item(substr($0, 3, 28), substr($0, 31)); next }
NF { sub(/^ +/, ""); print roff($0) }
'
