//! `kstrobe view`: the page and the API's queries over a history that was recorded elsewhere.

use super::fail;
use crate::app;
use crate::http;
use kstrobe_history::disk::Archive;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub struct Args {
    /// What `kstrobe history export` wrote (.kstrobe), or the folder of `history.dir`.
    #[arg(value_name = "FILE|DIR")]
    from: PathBuf,
    /// Port on 127.0.0.1; 0 for a free one.
    #[arg(long, value_name = "PORT", default_value_t = 0)]
    port: u16,
}

pub fn run(args: &Args) -> ExitCode {
    let archive = match Archive::open(&args.from) {
        Ok(archive) => archive,
        Err(error) => return fail(error),
    };
    let served = TcpListener::bind(("127.0.0.1", args.port)).and_then(|listener| {
        println!("http://{}/", listener.local_addr()?);
        app::view(archive, listener, http::router)
    });
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}
