//! `ostler serve`: the HTTP server, until Ctrl-C.

use std::sync::Arc;

use super::Exit;
use super::args::ServeArgs;
use super::loading;
use super::output::{Out, note};
use super::sampling::random_seed;
use crate::clock;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::server::{self, Listen, Service};

pub fn run(env: &Env, args: &ServeArgs, out: &mut Out) -> Result<Exit> {
    let runtime = tokio::runtime::Runtime::new()
        .map_err(|error| Error::device(format!("cannot start the server's threads: {error}")))?;
    let listen = Listen {
        host: args.host.clone(),
        port: args.port,
        api_key: args.api_key.clone().or_else(|| env.api_key.clone()),
    };
    // A port that is taken is known before a model is loaded.
    let listener = runtime.block_on(listen.bind())?;
    let address = server::address(&listener)?;
    let loaded = loading::load(env, &loading::options(&args.model)?, false)?;
    let service = Service::new(loaded.model, clock::freeze, clock::now_s, random_seed());
    out.line(&format!("listening on http://{address}/v1"))?;
    let stop = async {
        // A signal that cannot be listened for is no reason to stop at once.
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        note("stopping; press Ctrl-C again to stop at once");
        tokio::spawn(async {
            let _ = tokio::signal::ctrl_c().await;
            std::process::exit(i32::from(crate::error::EXIT_INTERRUPTED));
        });
    };
    runtime.block_on(server::serve(Arc::new(service), &listen, listener, stop))?;
    Ok(Exit::Done)
}
