//! `$((…))`: whole numbers, variables, the five operators and parentheses.

const MAX_DEPTH: usize = 32;

/// Returns the value, with the `variables` by name; `None` where one is not known, or something else is in it.
pub(super) fn value(text: &str, variables: &dyn Fn(&str) -> Option<i64>) -> Option<i64> {
    let mut reader = Reader { rest: text, variables, depth: 0 };
    let value = reader.sum()?;
    reader.rest.trim().is_empty().then_some(value)
}

struct Reader<'a> {
    rest: &'a str,
    variables: &'a dyn Fn(&str) -> Option<i64>,
    depth: usize,
}

impl Reader<'_> {
    fn sum(&mut self) -> Option<i64> {
        let mut value = self.product()?;
        loop {
            value = match self.operator("+-") {
                Some('+') => value.checked_add(self.product()?)?,
                Some(_) => value.checked_sub(self.product()?)?,
                None => return Some(value),
            };
        }
    }

    fn product(&mut self) -> Option<i64> {
        let mut value = self.atom()?;
        loop {
            value = match self.operator("*/%") {
                Some('*') => value.checked_mul(self.atom()?)?,
                Some('/') => value.checked_div(self.atom()?)?,
                Some(_) => value.checked_rem(self.atom()?)?,
                None => return Some(value),
            };
        }
    }

    fn operator(&mut self, of: &str) -> Option<char> {
        self.rest = self.rest.trim_start();
        let first = self.rest.chars().next().filter(|c| of.contains(*c))?;
        self.rest = &self.rest[1..];
        Some(first)
    }

    fn atom(&mut self) -> Option<i64> {
        if self.operator("(").is_some() {
            self.depth += 1;
            let value = if self.depth > MAX_DEPTH { None } else { self.sum() }?;
            self.depth -= 1;
            return self.operator(")").map(|_| value);
        }
        self.rest = self.rest.trim_start();
        self.rest = self.rest.strip_prefix('$').unwrap_or(self.rest);
        let is_braced = self.rest.starts_with('{');
        self.rest = self.rest.strip_prefix('{').unwrap_or(self.rest);
        let end = self.rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(self.rest.len());
        let (name, rest) = self.rest.split_at(end);
        self.rest = if is_braced { rest.strip_prefix('}')? } else { rest };
        if let Ok(number) = name.parse() {
            return Some(number);
        }
        (self.variables)(name)
    }
}
