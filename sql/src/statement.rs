//! Parsing, and what is let through.

use datafusion::dataframe::DataFrame;
use datafusion::execution::context::{SQLOptions, SessionContext};
use datafusion::sql::parser::{DFParser, Statement};
use datafusion::sql::sqlparser::ast;

use crate::SqlError;

/// Which statements are let through. None of them writes anything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Allowed {
    /// `SELECT`, also with `WITH` before it.
    Select,
    /// That, and what asks about tables and plans: `SHOW TABLES`, `DESCRIBE`, `EXPLAIN`.
    Questions,
}

/// Parses one statement and resolves it against the tables of `ctx`.
pub(crate) async fn plan(
    ctx: &SessionContext,
    query: &str,
    text: &str,
    allowed: Allowed,
    params: &[String],
) -> Result<DataFrame, SqlError> {
    let statement = parse(query, text, allowed)?;
    let failed = |source: datafusion::error::DataFusionError| SqlError::Plan {
        query: query.to_owned(),
        tables: table_names(ctx),
        params: params.to_vec(),
        source: source.into(),
    };
    let state = ctx.state();
    let plan = state.statement_to_plan(statement).await.map_err(failed)?;
    // A second fence: whatever a statement looks like, its plan changes nothing.
    let options = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    options.verify_plan(&plan).map_err(failed)?;
    Ok(DataFrame::new(state, plan))
}

fn parse(query: &str, text: &str, allowed: Allowed) -> Result<Statement, SqlError> {
    let mut statements = DFParser::parse_sql(text)
        .map_err(|source| SqlError::Syntax { query: query.to_owned(), source: source.into() })?;
    let not_one_select = |found: String| SqlError::NotOneSelect { query: query.to_owned(), found };
    let n_statements = statements.len();
    let statement = match statements.pop_front() {
        Some(statement) if n_statements == 1 => statement,
        Some(_) => return Err(not_one_select(format!("it holds {n_statements} statements"))),
        None => return Err(not_one_select("it is empty".to_owned())),
    };
    if is_allowed(&statement, allowed) {
        return Ok(statement);
    }
    let shown = statement.to_string();
    let keyword = shown.split_whitespace().next().unwrap_or("nothing").to_uppercase();
    Err(not_one_select(format!("it is {keyword}")))
}

fn is_allowed(statement: &Statement, allowed: Allowed) -> bool {
    match statement {
        Statement::Statement(statement) => match statement.as_ref() {
            ast::Statement::Query(_) => true,
            ast::Statement::ShowTables { .. }
            | ast::Statement::ShowColumns { .. }
            | ast::Statement::ExplainTable { .. }
            | ast::Statement::Explain { .. } => allowed == Allowed::Questions,
            _ => false,
        },
        Statement::Explain(explain) => {
            allowed == Allowed::Questions && is_allowed(&explain.statement, Allowed::Select)
        }
        _ => false,
    }
}

/// Names of all tables, sorted, those outside the default schema with the schema's name.
pub(crate) fn table_names(ctx: &SessionContext) -> Vec<String> {
    let mut names = Vec::new();
    for catalog in ctx.catalog_names().iter().filter_map(|name| ctx.catalog(name)) {
        for schema_name in catalog.schema_names() {
            let tables = catalog.schema(&schema_name).map(|schema| schema.table_names()).unwrap_or_default();
            let is_default = schema_name == "public";
            names.extend(
                tables
                    .into_iter()
                    .filter(|_| schema_name != "information_schema")
                    .map(|table| if is_default { table } else { format!("{schema_name}.{table}") }),
            );
        }
    }
    names.sort();
    names
}
