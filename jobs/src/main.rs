//! The command line of envace.

use std::process::ExitCode;

use clap::Parser;
use envace_jobs::cli::Cli;
use envace_jobs::error::print_error;
use tracing_subscriber::EnvFilter;

/// Stack of each thread.
const STACK_BYTES: usize = 8 << 20;

fn main() -> ExitCode {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time().init();
    let cli = Cli::parse();
    // A query of the user's own may be planned and run deeper than the usual 2 MiB have room for.
    let runtime =
        match tokio::runtime::Builder::new_multi_thread().thread_stack_size(STACK_BYTES).enable_all().build()
        {
            Ok(runtime) => runtime,
            Err(error) => {
                eprintln!("error: the runtime cannot be started: {error}");
                return ExitCode::from(1);
            }
        };
    match runtime.block_on(cli.run()) {
        Ok(code) => code,
        Err(error) => {
            print_error(&error);
            ExitCode::from(1)
        }
    }
}
