# An index of commands. Each is one line that can be typed without just.

# List the commands
default:
    @just --list --unsorted

# Show the terminator at work
demo:
    cargo run --release -- demo

# All tests but the slow ones, which `ci test` runs
test:
    cargo test --workspace --no-fail-fast

# What CI runs, or one step of it: packages, guest, toolchain, format, lint, document, dependencies, oldest, aarch64, models, miri, fuzz, benches, packaging, test
ci *STEP:
    .ci/run {{STEP}}

# Format everything
format:
    cargo fmt --all

# Lint everything, warnings are errors
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Build the documentation of the code and open it
doc:
    cargo doc --workspace --no-deps --open

# Rules of the house alone: lengths, words, links, arrows
tidy:
    cargo test -p becket-tidy

# Licences, sources and banned crates
deny:
    cargo deny check bans licenses sources

# Fuzz one target (client_hello, proxy_header, ...) until stopped
fuzz TARGET:
    cargo +nightly fuzz run {{TARGET}}

# Try a configuration without starting it
check FILE:
    cargo run --release -- check --config {{FILE}}

# Put load on a local server
load *ARGS:
    cargo run --release -p becket-load -- {{ARGS}}
