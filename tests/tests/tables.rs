//! What holds for every table.

use envace_schemas::Table;
use envace_tests::repository;

/// Columns that a reader of Hive partitions takes from the folders.
const FOLDERS: &[&str] = &["run", "stage", "step", "attempt"];

/// Two columns of one name: pyarrow refuses such files, others show one of the two.
#[test]
fn no_column_is_named_like_a_folder() {
    for table in Table::ALL {
        for column in table.columns() {
            assert!(
                !FOLDERS.contains(&column.name),
                "`{table}.{}` is a folder of the store too",
                column.name
            );
        }
    }
}

#[test]
fn readers_of_other_languages_read_every_table() {
    let script = fs_err::read_to_string(repository::root().join("tests/interop/read_tables.py")).unwrap();
    let list = script.split_once("TABLES = [").and_then(|(_, rest)| rest.split_once(']')).unwrap().0;
    let names: Vec<_> = list.split('"').skip(1).step_by(2).collect();
    assert_eq!(names, Table::ALL.iter().map(|table| table.name()).collect::<Vec<_>>());
}

#[test]
fn keys_and_columns_have_names_of_one_style() {
    for table in Table::ALL {
        let columns = table.columns();
        for name in table.grain() {
            let column = columns.iter().find(|column| column.name == *name);
            let column = column.unwrap_or_else(|| panic!("the grain of `{table}` names no column: {name}"));
            assert!(!column.is_nullable, "`{table}.{name}` is part of a key and may be NULL");
        }
        for column in &columns {
            let is_snake = column
                .name
                .chars()
                .all(|letter| letter.is_ascii_lowercase() || letter.is_ascii_digit() || letter == '_');
            assert!(is_snake, "`{table}.{}` is not snake_case", column.name);
            let is_boolean = column.data_type.to_string() == "Boolean";
            let has_prefix = column.name.starts_with("is_") || column.name.starts_with("has_");
            assert_eq!(
                is_boolean, has_prefix,
                "`{table}.{}`: truth values, and they alone, begin so",
                column.name
            );
        }
    }
}
