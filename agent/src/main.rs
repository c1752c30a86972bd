//! The `kstrobe` binary.

fn main() -> std::process::ExitCode {
    kstrobe::cli::main()
}
