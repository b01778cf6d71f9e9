"""Our own event handlers, one module each; they come in through the same door as everybody's."""
