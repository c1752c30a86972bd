//! `kstrobe version`

use std::process::ExitCode;

use super::Output;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub fn run(args: &Args) -> ExitCode {
    let version = env!("CARGO_PKG_VERSION");
    match args.output {
        Output::Text => println!("kstrobe {version}"),
        Output::Json => println!("{}", serde_json::json!({ "version": version, "arch": std::env::consts::ARCH })),
    }
    ExitCode::SUCCESS
}
