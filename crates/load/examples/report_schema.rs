//! Prints the JSON schema of a report: `cargo run -p becket-load --example report_schema >
//! crates/load/schema/becket-load.schema.json` after the types have changed.

fn main() -> Result<(), serde_json::Error> {
    print!("{}", becket_load::report::LoadReport::schema()?);
    Ok(())
}
