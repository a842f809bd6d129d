# A list of commands. Each is a single line that also works without just.

# List the commands
default:
    @just --list --unsorted

# Run the demo
demo:
    cargo run --release -- demo

# Run all tests except slow ones (`just ci test` includes them)
test:
    cargo test --workspace --no-fail-fast

# Run CI, or one of its steps: packages, guest, toolchain, format, lint, document, dependencies, oldest, aarch64, models, miri, fuzz, benches, gate, packaging, test
ci *STEP:
    .ci/run {{STEP}}

# Format all code
format:
    cargo fmt --all

# Lint all code; warnings are errors
lint:
    cargo clippy --workspace --all-targets -- -D warnings

# Build and open the documentation of the code
doc:
    cargo doc --workspace --no-deps --open

# Check the project's own rules: line lengths, words, links, dependencies between crates
tidy:
    cargo test -p becket-tidy

# Check licences, sources and banned crates
deny:
    cargo deny check bans licenses sources

# Fuzz one target (client_hello, proxy_header, ...) until stopped
fuzz TARGET:
    cargo +nightly fuzz run {{TARGET}}

# Check a configuration without starting becket
check FILE:
    cargo run --release -- check --config {{FILE}}

# Put load on a local server
load *ARGS:
    cargo run --release -p becket-load -- {{ARGS}}
