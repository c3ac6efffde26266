//! The `chronaxie` command.

fn main() -> std::process::ExitCode {
    chronaxie_cli::run(std::env::args_os()).into()
}
