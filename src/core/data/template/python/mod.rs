//! Python's side of Jinja, as transformers sets it up: printing, JSON, methods of strings, and filters where minijinja's
//! differ from Jinja's.

mod clock;
mod error;
mod filters;
mod format;
mod json;
mod percent;
mod print;
mod strings;

use minijinja::{Environment, Error, ErrorKind, State, Value};

pub(super) use percent::with_format_filter;

/// Functions, filters, methods and printing as Python has them.
pub(super) fn add_to(environment: &mut Environment<'static>) {
    environment.set_formatter(|out, _, value| out.write_str(&print::text(value)).map_err(Error::from));
    environment.set_unknown_method_callback(method);
    environment.add_filter(percent::FILTER, format::percent);
    environment.add_filter("tojson", json::tojson);
    environment.add_filter("string", |value: Value| print::text(&value));
    filters::add_to(environment);
    environment.add_function("strftime_now", |format: String| clock::strftime_now(&format));
    environment.add_function("raise_exception", |message: String| -> Result<Value, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
}

fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match strings::method(value, name, args)? {
        Some(result) => Ok(result),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args),
    }
}
