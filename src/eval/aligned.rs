//! Tables in the terminal.

/// Returns the lines of a table's rows: the first cell on the left, the others on the right of their columns.
pub fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let line = |row: &Vec<String>| {
        let cell = |(column, cell): (usize, &String)| match width(column).unwrap_or(0) {
            width if column == 0 => format!("{cell:width$}"),
            width => format!("  {cell:>width$}"),
        };
        row.iter().enumerate().map(cell).collect::<String>().trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
