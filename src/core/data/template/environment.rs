//! The environment that a template runs in: Jinja as Hugging Face has it, with bounds.

use std::collections::HashSet;

use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Error};

use super::answers::{ANSWER_FILTER, mark, with_answer_filter};
use super::python;
use crate::data::error::DataError;

/// The longest published template has 40 kB.
pub(super) const MAX_SOURCE: usize = 256 << 10;
/// Minijinja's parser and compiler call themselves for each of a chain of operators, of which a source may be full.
const STACK: usize = 512 << 20;
/// Instructions that one rendering may take; a long conversation takes about 100 000.
const FUEL: u64 = 5_000_000;
const RECURSION_LIMIT: usize = 100;

/// An environment with the template `chat`, and the variables that the template does not set itself.
type Compiled = (Environment<'static>, HashSet<String>);

/// Returns the environment of a template's source.
///
/// # Errors
/// The source is too long or no template.
pub(super) fn environment(source: &str) -> Result<Compiled, DataError> {
    if source.len() > MAX_SOURCE {
        return Err(DataError::Template(format!("has {} bytes; at most {MAX_SOURCE} are allowed", source.len())));
    }
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(describe)?;
    environment.set_syntax(syntax);
    environment.set_fuel(Some(FUEL));
    environment.set_recursion_limit(RECURSION_LIMIT);
    python::add_to(&mut environment);
    environment.add_filter(ANSWER_FILTER, mark);
    // As Jinja, which knows one kind of line's end.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    compile(environment, python::with_format_filter(&with_answer_filter(&source)))
}

/// Returns the environment with the template, on a thread with a large stack.
fn compile(mut environment: Environment<'static>, source: String) -> Result<Compiled, DataError> {
    let compile = move || -> Result<Compiled, DataError> {
        environment.add_template_owned("chat", source).map_err(describe)?;
        let variables = environment.get_template("chat").map_err(describe)?.undeclared_variables(false);
        Ok((environment, variables))
    };
    let thread = std::thread::Builder::new().name("template".to_owned()).stack_size(STACK).spawn(compile);
    let compiled = thread.map_err(|error| DataError::Template(format!("cannot be compiled: {error}")))?.join();
    compiled.unwrap_or_else(|_| Err(DataError::Template("cannot be compiled".to_owned())))
}

/// Makes the error of a template, with the line where it is known.
pub(super) fn describe(error: Error) -> DataError {
    let reason = match (error.detail(), error.line()) {
        (Some(detail), Some(line)) => format!("line {line}: {detail}"),
        _ => error.to_string(),
    };
    DataError::Template(reason)
}
