//! `docs/tables.md`, made from the declarations in `envace-schemas`.

use std::fmt::Write as _;

use arrow::datatypes::DataType;
use envace_schemas::{Column, Table};

/// Name of the page below the root.
pub const NAME: &str = "docs/tables.md";

const HEAD: &str = "\
# The tables

<!-- Made from the declarations in `schemas/src/tables/`; `UPDATE_DOCS=1 cargo test -p envace-tests` writes it anew. -->

Every table of a store lies in folders that any reader of Hive partitions understands:

```
<store>/tables/<table>/run=R/stage=S/step=000012/attempt=0/part-00000.parquet
```

`run`, `stage`, `step` and `attempt` are columns in SQL, taken from the path; the files do not repeat them. The rows of
one part are sorted by the grain, the columns that identify a row. NULL means \"not known\" or \"does not apply\", never
zero. Text that is called JSON is stored byte for byte as it came. Types are those of the Parquet files; `decimal` sums
do not depend on the order of the rows.
";

/// The whole page, as Markdown.
pub fn render() -> String {
    let mut page = HEAD.to_owned();
    page.push_str("\n| table | holds | one row for each |\n|---|---|---|\n");
    for table in Table::ALL {
        let name = table.name();
        page.push_str(&row(&[&format!("[`{name}`](#{name})"), table.doc(), &grain(*table)]));
    }
    for table in Table::ALL {
        let _ = write!(page, "\n## {}\n\n{}\n\n", table.name(), table.doc().trim());
        let _ = write!(page, "Version {}. One row for each ({}).\n\n", table.version(), grain(*table));
        page.push_str("| column | type | may be NULL | meaning |\n|---|---|---|---|\n");
        for Column { name, data_type, is_nullable, doc } in table.columns() {
            let may_be_null = if is_nullable { "yes" } else { "" };
            page.push_str(&row(&[&format!("`{name}`"), &type_name(&data_type), may_be_null, doc]));
        }
    }
    page
}

fn grain(table: Table) -> String {
    table.grain().iter().map(|column| format!("`{column}`")).collect::<Vec<_>>().join(", ")
}

/// The type in the words of SQL and Python readers.
fn type_name(data_type: &DataType) -> String {
    match data_type {
        DataType::LargeUtf8 => "text".to_owned(),
        DataType::Boolean => "boolean".to_owned(),
        DataType::Decimal128(precision, scale) => format!("decimal({precision}, {scale})"),
        DataType::LargeList(item) => {
            let or_null = if item.is_nullable() { " or NULL" } else { "" };
            format!("list of {}{or_null}", type_name(item.data_type()))
        }
        number => number.to_string().to_lowercase(),
    }
}

fn row(cells: &[&str]) -> String {
    let cells: Vec<String> = cells.iter().map(|cell| cell.trim().replace('|', "\\|")).collect();
    format!("| {} |\n", cells.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_column_has_its_row() {
        let page = render();
        for table in Table::ALL {
            let section = page.split(&format!("\n## {}\n", table.name())).nth(1).unwrap();
            let section = section.split("\n## ").next().unwrap();
            // The head of the column table and the line below it, then one line a column.
            let n_rows = section.lines().filter(|line| line.starts_with("| `")).count();
            assert_eq!(n_rows, table.columns().len(), "{table}");
        }
    }

    #[test]
    fn every_column_that_may_be_null_says_what_null_means() {
        for table in Table::ALL {
            for column in table.columns().iter().filter(|column| column.is_nullable) {
                assert!(column.doc.contains("NULL: "), "{table}.{}", column.name);
            }
        }
    }

    #[test]
    fn types_have_names_of_one_kind() {
        let names: std::collections::BTreeSet<_> = Table::ALL
            .iter()
            .flat_map(|table| table.columns())
            .map(|column| type_name(&column.data_type))
            .collect();
        for name in names {
            let is_known = ["text", "boolean", "int", "uint", "float", "decimal", "list of "];
            assert!(is_known.iter().any(|start| name.starts_with(start)), "{name}");
        }
    }

    #[test]
    fn a_bar_does_not_end_a_cell() {
        assert_eq!(row(&["a | b", " c"]), "| a \\| b | c |\n");
    }
}
