"""The local runtime: engine, prefix cache, scheduler, models, constraints, server. Importing this loads none of it."""
