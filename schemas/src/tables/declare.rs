/// Declares a row type and, from the same lines, the columns of its table.
macro_rules! row {
    (
        $(#[$meta:meta])*
        $row:ident = $name:literal, version $version:literal, grain [$($grain:literal),*] {
            $($(#[doc = $doc:literal])* $column:ident: $rust:ty,)*
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
        pub struct $row {
            $($(#[doc = $doc])* pub $column: $rust,)*
        }

        impl $row {
            pub(super) const NAME: &'static str = $name;
            pub(super) const GRAIN: &'static [&'static str] = &[$($grain),*];
            pub(super) const VERSION: u32 = $version;

            pub(super) fn columns() -> Vec<$crate::Column> {
                vec![$($crate::Column {
                    name: stringify!($column),
                    data_type: <$rust as $crate::ColumnType>::data_type(),
                    is_nullable: <$rust as $crate::ColumnType>::IS_NULLABLE,
                    doc: concat!($($doc,)*),
                },)*]
            }
        }
    };
}

pub(super) use row;
