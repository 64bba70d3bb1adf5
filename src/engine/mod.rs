//! The boundary to a database engine: data in, data out, no I/O. A second engine is a new folder beside `postgres`.

pub mod postgres;
