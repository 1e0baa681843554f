"""The room that decides: reads flow files, refuses bad flows, and examines what a flow needs before it runs."""
