//! Prints the JSON schema of a report: `cargo run -p becket-stats --example report_schema >
//! crates/stats/schema/becket-load.schema.json` after the types have changed.

fn main() -> Result<(), serde_json::Error> {
    print!("{}", becket_stats::report::LoadReport::schema()?);
    Ok(())
}
