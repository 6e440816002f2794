//! `loongforge schema`: the JSON schema with which editors complete and check configs.

use clap::Args;
use loongforge_core::config::editor_schema;
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  loongforge schema > loongforge.schema.json
and, for editors with the YAML language server, as the first line of a config:
  # yaml-language-server: $schema=loongforge.schema.json";

#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct SchemaArgs {}

/// Runs `loongforge schema`: prints the JSON schema of configs.
pub fn schema(_: SchemaArgs) -> anyhow::Result<ExitCode> {
    println!("{:#}", editor_schema());
    Ok(ExitCode::SUCCESS)
}
