"""The words every room shares: position, schema, batch, flow, options, connector card."""
