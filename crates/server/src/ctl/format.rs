//! How listings look: `table` (tabs), `pretty_table`, `csv`, `json`; and single values.

use std::fmt::Write as _;

use serde_json::Value;

/// The formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    PrettyTable,
    Csv,
    Json,
}

impl Format {
    /// The format of this name.
    pub(super) fn from_name(name: &str) -> Option<Self> {
        Some(match name {
            "table" | "erlang" | "string" | "plain" => Self::Table,
            "pretty_table" => Self::PrettyTable,
            "csv" => Self::Csv,
            "json" | "json_stream" => Self::Json,
            _ => return None,
        })
    }

    /// Whether programs read it: then nothing else is written.
    pub(super) fn is_for_programs(self) -> bool {
        matches!(self, Self::Csv | Self::Json)
    }

    /// A listing.
    pub(super) fn rows(self, fields: &[String], rows: &[Vec<Value>], headers: bool) -> String {
        match self {
            Self::Table => table(fields, rows, headers),
            Self::PrettyTable => pretty_table(fields, rows),
            Self::Csv => csv(fields, rows),
            Self::Json => json(fields, rows),
        }
    }
}

fn table(fields: &[String], rows: &[Vec<Value>], headers: bool) -> String {
    let mut out = String::new();
    if rows.is_empty() && headers {
        // As with rabbitmqctl: a line that says there is nothing.
        return "\n".to_owned();
    }
    if headers {
        out.push_str(&fields.join("\t"));
        out.push('\n');
    }
    for row in rows {
        let cells: Vec<String> = row.iter().map(cell).collect();
        out.push_str(&cells.join("\t"));
        out.push('\n');
    }
    out
}

fn pretty_table(fields: &[String], rows: &[Vec<Value>]) -> String {
    let cells: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(cell).collect()).collect();
    let width = |column: usize| {
        let of_cells = cells.iter().map(|row| row.get(column).map_or(0, |cell| cell.chars().count()));
        of_cells.chain([fields[column].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..fields.len()).map(width).collect();
    let border = |[left, middle, right]: [char; 3]| {
        let parts: Vec<String> = widths.iter().map(|width| "─".repeat(width + 2)).collect();
        format!("{left}{}{right}\n", parts.join(&middle.to_string()))
    };
    let line = |row: &[String]| {
        let mut out = String::from("│");
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(out, " {cell:<width$} │");
        }
        out.push('\n');
        out
    };
    let mut out = border(['┌', '┬', '┐']);
    out.push_str(&line(fields));
    for row in &cells {
        out.push_str(&border(['├', '┼', '┤']));
        out.push_str(&line(row));
    }
    out.push_str(&border(['└', '┴', '┘']));
    out
}

fn csv(fields: &[String], rows: &[Vec<Value>]) -> String {
    let quoted = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let mut out = fields.iter().map(|field| quoted(field)).collect::<Vec<_>>().join(",");
    out.push('\n');
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .map(|value| match value {
                Value::Number(_) | Value::Bool(_) => value.to_string(),
                other => quoted(&cell(other)),
            })
            .collect();
        out.push_str(&cells.join(","));
        out.push('\n');
    }
    out
}

/// One object per line, so that a long listing can be read as it comes.
fn json(fields: &[String], rows: &[Vec<Value>]) -> String {
    let mut out = String::from("[\n");
    for (number, row) in rows.iter().enumerate() {
        let pairs: Vec<String> =
            fields.iter().zip(row).map(|(field, value)| format!("{}:{value}", Value::from(field.as_str()))).collect();
        let _ = writeln!(out, "{}{{{}}}", if number == 0 { "" } else { "," }, pairs.join(","));
    }
    out.push_str("]\n");
    out
}

/// A value in a table.
pub(super) fn cell(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => escaped(text),
        Value::Array(items) if !items.is_empty() && items.iter().all(is_triple) => {
            let items: Vec<String> = items.iter().map(|triple| pair(&triple[0], &triple[2])).collect();
            format!("[{}]", items.join(","))
        }
        Value::Array(items) => format!("[{}]", items.iter().map(cell).collect::<Vec<_>>().join(", ")),
        Value::Object(fields) => {
            let fields: Vec<String> = fields.iter().map(|(name, value)| pair(&name.as_str().into(), value)).collect();
            format!("[{}]", fields.join(","))
        }
        other => other.to_string(),
    }
}

/// Whether it is an argument with its type.
fn is_triple(value: &Value) -> bool {
    matches!(value, Value::Array(parts) if parts.len() == 3 && parts[0].is_string() && parts[1].is_string())
}

fn pair(name: &Value, value: &Value) -> String {
    let value = match value {
        Value::String(_) => value.to_string(),
        other => cell(other),
    };
    format!("{{{name},{value}}}")
}

/// Nothing in a cell can look like the end of the cell or of the line, or move a terminal's cursor.
fn escaped(text: &str) -> String {
    if !text.contains(|c: char| c.is_control() || c == '\\') {
        return text.to_owned();
    }
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            c if c.is_control() => {
                let _ = write!(out, "\\{:03o}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn listing(format: Format) -> String {
        let fields = ["name", "messages", "arguments"].map(str::to_owned);
        let rows = [
            vec![json!("q1"), json!(2), json!([["x-max-length", "signedint", 10], ["x-queue-type", "longstr", "a"]])],
            vec![json!("a\tb"), json!(0), json!([])],
        ];
        format.rows(&fields, &rows, true)
    }

    #[test]
    fn tables_have_tabs_and_one_line_per_row() {
        let expected =
            "name\tmessages\targuments\nq1\t2\t[{\"x-max-length\",10},{\"x-queue-type\",\"a\"}]\na\\011b\t0\t[]\n";
        assert_eq!(listing(Format::Table), expected);
    }

    #[test]
    fn json_has_one_object_per_line_with_types() {
        let expected = "[\n{\"name\":\"q1\",\"messages\":2,\"arguments\":[[\"x-max-length\",\"signedint\",10],[\"x-queue-type\",\"longstr\",\"a\"]]}\n,{\"name\":\"a\\tb\",\"messages\":0,\"arguments\":[]}\n]\n";
        assert_eq!(listing(Format::Json), expected);
    }

    #[test]
    fn csv_quotes_texts() {
        assert!(listing(Format::Csv).starts_with("\"name\",\"messages\",\"arguments\"\n\"q1\",2,\"[{"));
    }

    #[test]
    fn pretty_tables_are_as_wide_as_their_cells() {
        let text = Format::PrettyTable.rows(&["name".to_owned()], &[vec![json!("käse7")]], true);
        assert_eq!(text, "┌───────┐\n│ name  │\n├───────┤\n│ käse7 │\n└───────┘\n");
    }

    #[test]
    fn lists_of_words_are_words() {
        assert_eq!(cell(&json!(["administrator", "x"])), "[administrator, x]");
        assert_eq!(cell(&json!({"max-length": 10})), "[{\"max-length\",10}]");
        assert_eq!(cell(&Value::Null), "");
    }
}
