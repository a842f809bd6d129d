//! Prints the JSON schema of a stored run. After a change of the types, run: `cargo run -p becket-bench --example run_schema >
//! bench/schema/becket-bench.schema.json`.

fn main() -> Result<(), serde_json::Error> {
    print!("{}", becket_bench::result::Run::schema()?);
    Ok(())
}
