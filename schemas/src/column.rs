use std::sync::Arc;

use arrow::datatypes::{DataType, Field};

use crate::Decimal;

/// One column of a table, as declared in [`crate::tables`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Name, `snake_case`.
    pub name: &'static str,
    /// Arrow type.
    pub data_type: DataType,
    /// Whether NULL, "not known", may occur.
    pub is_nullable: bool,
    /// Meaning, unit, and what NULL says.
    pub doc: &'static str,
}

impl Column {
    /// The Arrow field; the meaning is in its metadata under `doc`.
    pub fn field(&self) -> Field {
        let metadata = [("doc".to_owned(), self.doc.trim().to_owned())].into();
        Field::new(self.name, self.data_type.clone(), self.is_nullable).with_metadata(metadata)
    }
}

/// A Rust type that a column can hold.
pub trait ColumnType {
    /// Whether the column may be NULL.
    const IS_NULLABLE: bool = false;
    /// The Arrow type.
    fn data_type() -> DataType;
}

macro_rules! column_types {
    ($($rust:ty => $arrow:expr,)*) => {
        $(impl ColumnType for $rust {
            fn data_type() -> DataType {
                $arrow
            }
        })*
    };
}

column_types! {
    // 64-bit offsets: a column of transcripts passes 2 GiB before its row group does.
    String => DataType::LargeUtf8,
    bool => DataType::Boolean,
    i32 => DataType::Int32,
    i64 => DataType::Int64,
    u32 => DataType::UInt32,
    f32 => DataType::Float32,
    f64 => DataType::Float64,
    Decimal => DataType::Decimal128(Decimal::PRECISION, Decimal::SCALE),
}

impl<T: ColumnType> ColumnType for Option<T> {
    const IS_NULLABLE: bool = true;
    fn data_type() -> DataType {
        T::data_type()
    }
}

impl<T: ColumnType> ColumnType for Vec<T> {
    fn data_type() -> DataType {
        DataType::LargeList(Arc::new(Field::new("item", T::data_type(), T::IS_NULLABLE)))
    }
}
