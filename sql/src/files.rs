//! Parquet files of a table as DataFusion reads them: column by column, and only those that a query needs.

use std::sync::Arc;

use arrow::datatypes::{Field, Schema};
use datafusion::datasource::file_format::parquet::ParquetFormat;
use datafusion::datasource::listing::{ListingOptions, ListingTable, ListingTableConfig, ListingTableUrl};
use datafusion::error::DataFusionError;
use envace_schemas::Table;
use object_store::path::Path;
use url::Url;

/// The place under which a session knows its store; no machine has it.
pub(crate) fn root() -> Result<Url, DataFusionError> {
    Url::parse("envace://store/").map_err(|error| DataFusionError::External(Box::new(error)))
}

/// The table that lies in these files of the store.
pub(crate) fn files_of(table: Table, paths: &[Path]) -> Result<ListingTable, DataFusionError> {
    let root = root()?;
    let mut urls = Vec::new();
    for path in paths {
        let mut url = root.clone();
        // A URL is decoded on its way to the store; a path has escapes of its own, which must survive that.
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path.as_ref().split('/'));
        }
        urls.push(ListingTableUrl::try_new(url, None)?);
    }
    let options = ListingOptions::new(Arc::new(ParquetFormat::default())).with_file_extension("");
    let config = ListingTableConfig::new_with_multi_paths(urls)
        .with_listing_options(options)
        .with_schema(Arc::new(plain_schema(table)));
    ListingTable::try_new(config)
}

/// The table's columns without their documentation, which plans would carry along.
pub(crate) fn plain_schema(table: Table) -> Schema {
    let columns = table.columns();
    let fields =
        columns.iter().map(|column| Field::new(column.name, column.data_type.clone(), column.is_nullable));
    Schema::new(fields.collect::<Vec<_>>())
}
