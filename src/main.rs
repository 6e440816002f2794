//! The `loongforge` program: the command line with the built-in families alone.

use loongforge::cli::main_with;
use loongforge::compose::Families;
use std::process::ExitCode;

fn main() -> ExitCode {
    main_with(Families::new())
}
