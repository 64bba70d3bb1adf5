//! PostgreSQL as the engine: settings, connection strings, host-based authentication and the parsing of its answers.
