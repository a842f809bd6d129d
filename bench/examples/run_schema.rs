//! Prints the JSON schema of a stored run: `cargo run -p becket-bench --example run_schema >
//! bench/schema/becket-bench.schema.json` after the types have changed.

fn main() -> Result<(), serde_json::Error> {
    print!("{}", becket_bench::result::Run::schema()?);
    Ok(())
}
