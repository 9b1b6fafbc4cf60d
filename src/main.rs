//! The command `rustyflow`.

fn main() -> std::process::ExitCode {
    rustyflow::cli::main()
}
